//! Edits of a body that leave every other byte alone.
