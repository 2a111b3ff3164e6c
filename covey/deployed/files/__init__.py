"""Files and folders of a deployed tree."""
