"""What each block of context contributes to the last window of queries."""
