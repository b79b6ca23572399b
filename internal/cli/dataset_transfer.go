package cli

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

const objectStoreHelp = `URL is s3://BUCKET/KEY, or s3://BUCKET/DIRECTORY/ for the objects directly in a directory. Add
?region=REGION for a bucket outside of us-east-1, and endpoint=https://HOST for a server other than
Amazon S3. The value of the secret is JSON: {"access_key_id": "…", "secret_access_key": "…"}.`

func datasetImport() *cobra.Command {
	var secret string
	c := &cobra.Command{Use: "import ID URL",
		Short: "Create a dataset from rows in an object store and wait until it is READY", Args: arguments(2, 2),
		Example: "  anneal dataset import chats 's3://my-rows/chats/?region=eu-west-1' --secret store",
		Long:    "Imports rows into a new dataset, or into an existing one without valid rows.\n\n" + objectStoreHelp,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			store := map[string]any{"externalUrl": args[1], "credentialsSecret": secretName(client, secret)}
			err = client.call(c.Context(), http.MethodPost, client.path("datasets"), nil,
				map[string]any{"datasetId": args[0], "dataset": store}, nil)
			name := client.name("datasets", args[0])
			if canUploadInto(c.Context(), client, "datasets", args[0], err) {
				fmt.Fprintf(c.ErrOrStderr(), "dataset %s already exists without valid rows: importing into it\n",
					args[0])
				err = client.call(c.Context(), http.MethodPost, "/v1/"+name+":import", nil, store, nil)
			}
			if err != nil {
				return err
			}
			item, err := awaitUpload(c.Context(), client, name, "correct the URL or the secret, and import again")
			if err != nil {
				return err
			}
			return printDataset(c, item)
		}}
	c.Flags().StringVar(&secret, "secret", "", "secret with the credentials (default: none, for public objects)")
	bindReference(c, "secret", "credentialsSecret", "secrets")
	return c
}

func datasetExport() *cobra.Command {
	var secret string
	c := &cobra.Command{Use: "export ID URL --secret SECRET",
		Short: "Copy a dataset's files to an object store and wait until they are copied", Args: arguments(2, 2),
		Example: "  anneal dataset export chats s3://my-rows/exported/ --secret store", Long: objectStoreHelp,
		RunE: func(c *cobra.Command, args []string) error {
			if secret == "" {
				return required("secret")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			name := client.name("datasets", args[0])
			var item map[string]any
			err = client.call(c.Context(), http.MethodPost, "/v1/"+name+":export", nil,
				map[string]any{"externalUrl": args[1], "credentialsSecret": secretName(client, secret)}, &item)
			for err == nil && cell(item, "export.state") == "RUNNING" {
				if err = sleep(c.Context(), watchPoll); err == nil {
					item = nil
					err = client.call(c.Context(), http.MethodGet, "/v1/"+name, nil, nil, &item)
				}
			}
			switch {
			case err != nil:
				return err
			case cell(item, "export.state") != "COMPLETED":
				return errors.New(name + " is not exported: " + cell(item, "export.status.message"))
			}
			note(c, "%s is exported to %s", name, cell(item, "export.externalUrl"))
			return jsonOnly(c, item)
		}}
	c.Flags().StringVar(&secret, "secret", "", "secret with the credentials")
	bindReference(c, "secret", "credentialsSecret", "secrets")
	return c
}

// secretName returns the resource name of a secret that is given by its name or ID; "" if secret is
// "".
func secretName(client *client, secret string) string {
	if secret == "" {
		return ""
	}
	return client.name("secrets", secret)
}
