"""Where the time of a trace went: what a device did, what it waited for, and who launched it."""
