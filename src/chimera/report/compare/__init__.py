"""Compare runs by what they were told and what came of it.

`collect` reads the runs, `groups` finds the settings that differ and puts equal runs together,
`figure` draws the losses, `page` makes one HTML page, `write` writes all of it.
"""
