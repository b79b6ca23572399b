package cli

import (
	"net/http"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// deriveFlags are the flags that select the rows of a derived dataset.
type deriveFlags struct {
	from, filter, displayName string
	holdOut                   float64
	seed                      int
	rest                      bool
}

func datasetDerive() *cobra.Command {
	var flags deriveFlags
	c := &cobra.Command{Use: "derive ID --from DATASET",
		Short: "Derive a dataset from the rows of another and wait until it is READY", Args: arguments(1, 1),
		Example: "  anneal dataset derive hard --from all --filter 'difficulty > 3'\n" +
			"  anneal dataset derive held --from all --hold-out 0.1\n" +
			"  anneal dataset derive kept --from all --hold-out 0.1 --rest",
		Long: `Derives a dataset from the rows that match --filter, from one part of a split with
--hold-out, or, without both flags, from all rows. A filter refers to fields of a row, such as
messages.role:tool or score >= 0.5 AND NOT draft = true, or is a word that a text of the row must contain. A
split with the same share and seed always holds out the same rows.`,
		RunE: func(c *cobra.Command, args []string) error {
			body, err := flags.body(args[0])
			if err != nil {
				return err
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, client.path("datasets"), nil, body, &item); err != nil {
				return err
			}
			if item, err = awaitUpload(c.Context(), client, client.name("datasets", args[0]), ""); err != nil {
				return err
			}
			return printDataset(c, item)
		}}
	c.Flags().StringVar(&flags.from, "from", "", "source dataset")
	bindReference(c, "from", "sourceDatasetId", "datasets")
	c.Flags().StringVar(&flags.filter, "filter", "", "derive only the rows that match this filter")
	c.Flags().StringVar(&flags.displayName, "display-name", "", "display name")
	c.Flags().Float64Var(&flags.holdOut, "hold-out", 0,
		"share of the rows to hold out, between 0 and 1; the new dataset gets the held-out rows or, with --rest, the "+
			"others")
	c.Flags().IntVar(&flags.seed, "seed", 0, "seed that selects which rows are held out")
	c.Flags().BoolVar(&flags.rest, "rest", false, "with --hold-out, the new dataset gets the rows that are not held out")
	return c
}

func (f deriveFlags) body(id string) (map[string]any, error) {
	switch {
	case f.from == "":
		return nil, required("from")
	case f.holdOut == 0 && (f.rest || f.seed != 0):
		return nil, usage.Errorf("--rest and --seed require --hold-out, the share of held-out rows")
	}
	dataset := map[string]any{"displayName": f.displayName}
	if f.holdOut != 0 {
		dataset["splitted"] = map[string]any{"fraction": f.holdOut, "seed": f.seed, "rest": f.rest}
	}
	body := map[string]any{"datasetId": id, "sourceDatasetId": f.from, "dataset": dataset}
	if f.filter != "" {
		body["filter"] = f.filter
	}
	return body, nil
}
