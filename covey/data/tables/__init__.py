"""Tables of the user's own."""
