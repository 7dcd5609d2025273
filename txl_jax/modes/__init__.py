"""What --mode of the program asks for, a file each."""
