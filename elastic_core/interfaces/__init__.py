"""What plugins implement and the rooms consume. Nothing here does any work."""
