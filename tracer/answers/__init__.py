"""Analyses: pure functions from columns to frozen findings, one question a file."""
