"""What a link does to rows, and what that costs."""
