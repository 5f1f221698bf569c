"""What several rooms and plugins need and none of them is about; each written once."""
