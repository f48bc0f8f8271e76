//! What an answer says of its usage, found as it streams by, and the one event that the client must not see.
