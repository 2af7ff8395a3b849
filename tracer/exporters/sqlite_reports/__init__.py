"""The SQLite files that Skyline's and DeepView.Profile's readers know."""
