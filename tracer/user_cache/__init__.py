"""Builds of C code for this user: their folders, which no other user can change, and when they are deleted."""
