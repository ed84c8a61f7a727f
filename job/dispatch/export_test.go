package dispatch

// Missing is missing, for tests of package dispatch_test.
var Missing = missing
