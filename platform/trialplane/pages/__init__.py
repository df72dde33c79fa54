"""A run as a page for the browser: facts, columns of numbers, and one HTML file that needs no network."""
