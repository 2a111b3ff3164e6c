"""Arrays, images and texts of the user's own."""
