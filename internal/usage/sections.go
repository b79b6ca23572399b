package usage

import "github.com/spf13/pflag"

// sectionAnnotation is the annotation of a flag with the title of its section.
const sectionAnnotation = "section"

// AddSection calls add, and puts the flags that it adds to f into a section of the command's help.
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

// SetSection puts flags of f into a section of the command's help.
func SetSection(f *pflag.FlagSet, title string, names ...string) {
	for _, name := range names {
		if err := f.SetAnnotation(name, sectionAnnotation, []string{title}); err != nil {
			panic(err) // the flag does not exist
		}
	}
}

// A Section is a part of the flags of a command under a title.
type Section struct {
	Title string
	Flags *pflag.FlagSet
}

// Sections returns the shown flags of f by section, in the order of their first flags. The section
// "Flags", which comes first, has the flags without a section. If --help is the only flag without a
// section, it is in the section "Other", which comes last.
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
