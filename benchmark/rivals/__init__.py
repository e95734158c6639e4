"""Other ways to carry large data, each as a good engineer would use it. Their packages never enter the product."""
