"""The kinds a user writes, as strict pydantic models."""
