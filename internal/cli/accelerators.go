package cli

import (
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

var acceleratorColumns = []column{{"METHOD", "method"}, {"PARAMETERS UP TO", "size"},
	{"ACCELERATORS", "acceleratorCount"}, {"TYPE", "acceleratorType"}}

// anySize is the SIZE of a row that applies to models of any number of parameters.
const anySize = "any"

func acceleratorsCommand() *cobra.Command {
	c := group("accelerators", "Manage how many accelerators training jobs get (run on the server's machine)",
		acceleratorsList(),
		acceleratorsSet())
	dataFlag(c.PersistentFlags())
	return c
}

func acceleratorsList() *cobra.Command {
	return asOfFlag(&cobra.Command{Use: "list [ACCOUNT]", Aliases: []string{"ls"},
		Short: "Show how many accelerators the jobs of an account get (default: of all accounts)",
		Args:  arguments(0, 1),
		Long: `Shows the rows in the order in which they are tried: the first row that applies to a job
decides. A job to which no row applies gets as many accelerators as the estimate of its memory requires.`,
		RunE: func(c *cobra.Command, args []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			table, err := jobAcceleratorsOf(c, operator, append(args, domain.System)[0])
			if err == nil && len(table) == 0 && len(args) == 1 {
				note(c, "account %s has no rows of its own: these are the rows for all accounts", args[0])
				table, err = jobAcceleratorsOf(c, operator, domain.System)
			}
			if err != nil {
				return err
			}
			return printJobAccelerators(c, table)
		}})
}

// jobAcceleratorsOf returns the accelerator rows of an account. The rows for all accounts are those
// of "system".
func jobAcceleratorsOf(c *cobra.Command, operator *client, account string) ([]any, error) {
	var item map[string]any
	err := operator.call(c.Context(), http.MethodGet, "/v1/accounts/"+account, asOf(c, nil), nil, &item)
	rows, _ := item["jobAccelerators"].([]any)
	return rows, err
}

func printJobAccelerators(c *cobra.Command, rows []any) error {
	inJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	items := []map[string]any{}
	for _, row := range rows {
		item, ok := row.(map[string]any)
		if !ok {
			continue
		}
		if !inJSON {
			item["size"] = shownSize(cell(item, "maxParameterCount"))
			if item["method"] == nil {
				item["method"] = "every method"
			}
		}
		items = append(items, item)
	}
	return printItems(c, noRows{"no rows: each job gets as many accelerators as the estimate of its memory requires",
		"set numbers with `anneal accelerators set`"},
		items, acceleratorColumns...)
}

func acceleratorsSet() *cobra.Command {
	account := domain.System
	c := &cobra.Command{Use: "set ROW... | none", Args: arguments(1, domain.MaxJobAcceleratorRows),
		Short: "Set how many accelerators the jobs of all accounts, or of one, get",
		Example: "  anneal accelerators set 8B=1 dpo:8B=2 70B=8xVENDOR_A_H100_80GB\n" +
			"  anneal accelerators set any=1 --account trial\n  anneal accelerators set none",
		Long: `A ROW is [METHOD:]SIZE=COUNT[xTYPE]: jobs that train a model of at most SIZE parameters by METHOD get COUNT
accelerators of TYPE on each of their nodes.

METHOD is ` + strings.Join(domain.Methods, ", ") + `; without it, the row applies to every method. SIZE is a
number such as 8B or 350M, or any. COUNT 0 stands for CPUs only. Without TYPE, a job gets the type with the
most devices on the nodes that can train it. The first row that applies to a job decides: rows with a METHOD
are tried before rows without, and smaller sizes before larger ones. The rows of an account replace those of
all accounts; none removes them. Running jobs keep their accelerators.`,
		RunE: func(c *cobra.Command, args []string) error {
			rows := []any{}
			for _, text := range args {
				if text == "none" && len(args) == 1 {
					break
				}
				row, err := parseAcceleratorRow(text)
				if err != nil {
					return err
				}
				rows = append(rows, row)
			}
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			var item map[string]any
			if err := operator.call(c.Context(), http.MethodPost, "/v1/accounts/"+account+":setJobAccelerators", nil,
				map[string]any{"rows": rows}, &item); err != nil {
				return err
			}
			table, _ := item["jobAccelerators"].([]any)
			return printJobAccelerators(c, table)
		}}
	c.Flags().StringVar(&account, "account", account, "`ACCOUNT` whose jobs get these accelerators; system stands "+
		"for all accounts without rows of their own")
	return c
}

// parseAcceleratorRow parses a row [METHOD:]SIZE=COUNT[xTYPE], and returns it as the JSON of the
// API. The server validates the METHOD, the COUNT and the TYPE.
func parseAcceleratorRow(text string) (map[string]any, error) {
	row, rest := map[string]any{}, text
	if method, after, found := strings.Cut(text, ":"); found {
		row["method"], rest = method, after
	}
	size, accelerators, found := strings.Cut(rest, "=")
	parameters, ok := parseSize(size)
	count, accelerator, typed := strings.Cut(accelerators, "x")
	n, err := strconv.Atoi(count)
	if !found || !ok || err != nil || typed && accelerator == "" || row["method"] == "" {
		return nil, usage.Errorf("row %q must be [METHOD:]SIZE=COUNT[xTYPE], such as 8B=1 (1 accelerator for models "+
			"of at most 8 billion parameters) or dpo:70B=8xVENDOR_A_H100_80GB", text)
	}
	if row["acceleratorCount"] = n; typed {
		row["acceleratorType"] = accelerator
	}
	if parameters > 0 {
		row["maxParameterCount"] = strconv.FormatInt(parameters, 10)
	}
	return row, nil
}

// sizeUnits are the suffixes of a number of parameters, the largest first.
var sizeUnits = []struct {
	suffix string
	size   float64
}{{"T", 1e12}, {"B", 1e9}, {"M", 1e6}, {"", 1}}

// parseSize parses a number of parameters, such as 8B. For anySize, parameters is 0. ok is false
// for any other text.
func parseSize(text string) (parameters int64, ok bool) {
	if text == anySize {
		return 0, true
	}
	for _, unit := range sizeUnits {
		number, found := strings.CutSuffix(text, unit.suffix)
		if !found {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		n = math.Round(n * unit.size)
		return int64(n), err == nil && n >= 1 && n <= 1e15
	}
	return 0, false
}

// shownSize formats a number of parameters, a decimal, as parseSize reads it; anySize if count is
// "".
func shownSize(count string) string {
	parameters, err := strconv.ParseInt(count, 10, 64)
	if err != nil {
		return anySize
	}
	for _, unit := range sizeUnits {
		if tenths := int64(unit.size / 10); tenths > 0 && parameters >= int64(unit.size) && parameters%tenths == 0 {
			return strconv.FormatFloat(float64(parameters)/unit.size, 'f', -1, 64) + unit.suffix
		}
	}
	return count
}
