"""Why memory is full, and which change removes it: each cause in a file with what shows it and what to say.

`find.py` has them in order, most avoidable first. Nothing here is tried: `first_changes` replays each change.
"""
