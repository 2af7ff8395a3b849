"""Other people's trainers: thin callbacks over one session, each imported only when asked for."""
