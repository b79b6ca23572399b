package usage

import "github.com/spf13/pflag"

// sectionAnnotation is the annotation of a flag with the title of its section in the help.
const sectionAnnotation = "section"

// AddSection calls add with a flag set, and adds its flags to f, in the section with a title.
func AddSection(f *pflag.FlagSet, title string, add func(f *pflag.FlagSet)) {
	earlier := map[string]bool{}
	f.VisitAll(func(flag *pflag.Flag) { earlier[flag.Name] = true })
	add(f)
	f.VisitAll(func(flag *pflag.Flag) {
		if !earlier[flag.Name] {
			SetSection(f, title, flag.Name)
		}
	})
}

// SetSection moves the named flags of f to the section with a title.
func SetSection(f *pflag.FlagSet, title string, names ...string) {
	for _, name := range names {
		if err := f.SetAnnotation(name, sectionAnnotation, []string{title}); err != nil {
			panic(err) // fails only if the flag does not exist
		}
	}
}

// A Section is a section of flags in the help of a command.
type Section struct {
	Title string
	Flags *pflag.FlagSet
}

// Sections returns the visible flags of f by section, in the order of the first flag of each
// section. Flags without a section come first, in the section "Flags"; if --help is the only one,
// it comes last, in the section "Other".
func Sections(f *pflag.FlagSet) (all []Section) {
	var titles []string
	byTitle := map[string]*pflag.FlagSet{}
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden {
			return
		}
		title := "Flags"
		if given := flag.Annotations[sectionAnnotation]; len(given) > 0 {
			title = given[0]
		}
		flags := byTitle[title]
		if flags == nil {
			flags = pflag.NewFlagSet(title, pflag.ContinueOnError)
			flags.SortFlags = false
			titles, byTitle[title] = append(titles, title), flags
		}
		flags.AddFlag(flag)
	})
	var rest *pflag.FlagSet
	for _, title := range titles {
		if title != "Flags" {
			all = append(all, Section{title, byTitle[title]})
		} else {
			rest = byTitle[title]
		}
	}
	switch {
	case rest == nil:
		return all
	case len(all) > 0 && count(rest) == 1 && rest.Lookup("help") != nil:
		return append(all, Section{"Other", rest})
	}
	return append([]Section{{"Flags", rest}}, all...)
}

func count(f *pflag.FlagSet) (n int) {
	f.VisitAll(func(*pflag.Flag) { n++ })
	return n
}
