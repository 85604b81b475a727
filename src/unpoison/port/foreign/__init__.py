"""Dead letters that other systems wrote: pure readers of what they say, which every adapter uses."""
