// Package browser tests the console in Chromium. It is a separate Go module, so that the server
// does not depend on the packages that control the browser.
package browser
