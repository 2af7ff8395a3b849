"""Why memory is full, and which change removes it: each cause in a file with what shows it and what to say.

Nothing here is tried: `first_changes` asks them in order, most avoidable first, and replays each change.
"""
