"""Text on a terminal, a file for each kind of answer."""
