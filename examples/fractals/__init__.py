"""Mandelbrot and Julia sets, painted in tiles by a pool of processes, on a web page or into a picture."""
