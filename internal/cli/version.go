package cli

import (
	"runtime"

	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Show the version of this program", Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			return printItem(c, map[string]any{"version": c.Root().Version, "go": runtime.Version(),
				"platform": runtime.GOOS + "/" + runtime.GOARCH},
				column{"anneal", "version"}, column{"Go", "go"}, column{"Platform", "platform"})
		}}
}
