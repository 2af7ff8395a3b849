"""Source code: whose a file is, which line an operator stands on, what compiled code was made of."""
