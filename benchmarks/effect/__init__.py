"""What norm, quantiser and feed-forward layer do alone and together, from runs of a part of all
combinations.

squares  which combinations are trained: Latin squares
runs     command lines of their runs, and their records in the store
fit      main effects by least squares, with intervals
pairs    pairs that differ from the sum of their effects
plan     what was to be trained, and the fits of what was
costs    what the levels cost
page     the page
"""
