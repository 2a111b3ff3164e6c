"""The report's page, and the server that shows it."""
