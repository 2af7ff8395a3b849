"""Outputs, one file for each: it takes findings and a path, and writes; where that cannot be, it raises OutputError.

Text for a terminal is in `screen/`, JSON in `json_documents/`, the page in `page/`.
"""
