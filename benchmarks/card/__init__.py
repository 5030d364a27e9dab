"""Pages from the records of profiles: a card of each mixer, and which mixer for what.

records    runs by mixer and task: rates, scores of the seeds, groups
stored     the same, read from the records of a run store
published  scores that others print for the same tasks, with their sources
page       the card of a mixer
failures   what a mixer cannot do, as read off its numbers
radar      its picture
choose     the page that compares all mixers
"""
