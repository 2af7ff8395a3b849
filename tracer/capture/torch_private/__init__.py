"""Everything of torch that is private, in one folder, so that a changed torch breaks here, loudly, and nowhere else.

A file for each subject, and none imports more than one other: a torch without some part breaks what needs that part.
"""
