"""What tokens stand for: bytes, words, subwords; and text from them again."""
