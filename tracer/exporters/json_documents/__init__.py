"""JSON for other programs: a file for each document, and one header for all of them."""
