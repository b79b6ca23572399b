// Package browser tests the console in Chromium. It is a module of its own, so that the program does not
// depend on what drives the browser.
package browser
