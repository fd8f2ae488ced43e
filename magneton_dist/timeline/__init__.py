"""What each rank's device was doing at every instant, and whom it waited for."""
