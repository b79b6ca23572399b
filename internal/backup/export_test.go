package backup

// Lines, for tests.
var Lines = lines
