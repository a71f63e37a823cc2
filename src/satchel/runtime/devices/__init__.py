"""What differs from one processor to another: the only part of runtime that names any."""
