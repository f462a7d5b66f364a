"""`pageant replay`: what a recorded topology was asked is asked of another, and the two are held side by side."""
