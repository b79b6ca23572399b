package cli

import (
	"net/http"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// deriveFlags say which rows of a dataset another is made of.
type deriveFlags struct {
	from, filter, displayName string
	holdOut                   float64
	seed                      int
	rest                      bool
}

func datasetDerive() *cobra.Command {
	var flags deriveFlags
	c := &cobra.Command{Use: "derive ID --from DATASET", Short: "Make a dataset from the rows of another and wait until it is made", Args: arguments(1, 1),
		Example: "  anneal dataset derive hard --from all --filter 'difficulty > 3'\n" +
			"  anneal dataset derive held --from all --hold-out 0.1\n" +
			"  anneal dataset derive kept --from all --hold-out 0.1 --rest",
		Long: `Makes a dataset of the rows that match a filter, of one side of a split, or, with neither, of
all rows. A filter is written over the fields of a row: messages.role:tool, score >= 0.5 AND NOT
draft = true, or a word that any text of the row holds. A split with the same share and seed always
holds the same rows out.`,
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
			if item, err = client.awaitUpload(c.Context(), client.name("datasets", args[0])); err != nil {
				return err
			}
			return printItem(c, item, datasets.details...)
		}}
	c.Flags().StringVar(&flags.from, "from", "", "the dataset whose rows are taken")
	bindReference(c, "from", "sourceDatasetId", "datasets")
	c.Flags().StringVar(&flags.filter, "filter", "", "take the rows that match")
	c.Flags().StringVar(&flags.displayName, "display-name", "", "a name for people")
	c.Flags().Float64Var(&flags.holdOut, "hold-out", 0, "hold out this share of the rows, above 0 and below 1, and take those")
	c.Flags().IntVar(&flags.seed, "seed", 0, "hold out other rows of the same number")
	c.Flags().BoolVar(&flags.rest, "rest", false, "take the rows that are not held out")
	return c
}

func (f deriveFlags) body(id string) (map[string]any, error) {
	switch {
	case f.from == "":
		return nil, required("from")
	case f.holdOut == 0 && (f.rest || f.seed != 0):
		return nil, usage.Errorf("--rest and --seed need --hold-out: say which share of the rows is held out")
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
