package domain

import (
	"math"
	"time"
)

// A Derivation says from which rows of another dataset the platform makes one:
// those that match a filter, one side of a split, or all of them.
type Derivation struct {
	Source Name   `json:"source"`
	Folder string `json:"folder"`           // where the source's rows lie: another folder under its name holds other rows
	Filter string `json:"filter,omitempty"` // AIP-160 over a row; "" is every row
	Split  *Split `json:"split,omitempty"`
}

// A Split divides rows in two by a seed. The same split of the same rows is
// always the same.
type Split struct {
	Held Count `json:"held"` // rows on the one side
	Of   Count `json:"of"`   // rows in all
	Seed int   `json:"seed"`
	Rest bool  `json:"rest,omitempty"` // the other side: the rows that are not held
}

// MaxSeed is the largest seed of a split, so that every reader of JSON can hold it.
const MaxSeed = math.MaxInt32

// A carve-out holds back one row in CarveOneIn for evaluation, at least one and
// at most MaxCarved. A tenth is what is customary; the mean loss of 1,000 rows
// is known to a thirtieth of what one row's varies by (its error falls with the
// root of their number), and more rows would be missed in training.
const (
	CarveOneIn = 10
	MaxCarved  = 1000
)

// CarveOut is how many of a number of rows a carve-out holds back.
func CarveOut(rows Count) Count {
	return min(max((rows+CarveOneIn/2)/CarveOneIn, 1), MaxCarved)
}

// SplitOf is the split that holds a fraction of a number of rows, and leaves at
// least one row on each side.
func SplitOf(rows Count, fraction float64, seed int, rest bool) *Split {
	held := Count(math.Round(fraction * float64(rows)))
	return &Split{Held: min(max(held, 1), rows-1), Of: rows, Seed: seed, Rest: rest}
}

// Origin is the split as a dataset that was made by it shows it: who asks for
// that fraction with that seed gets the same rows.
func (s Split) Origin(source Name) *DatasetSplitted {
	return &DatasetSplitted{SourceDatasetID: source.ID(), Fraction: float64(s.Held) / float64(s.Of), Seed: s.Seed, Rest: s.Rest}
}

// Filling reports whether the platform is making the dataset's rows.
func (d Dataset) Filling() bool {
	return d.From != nil && d.State == DatasetUploading && d.Status.Code == OK.String()
}

// Unfilled reports whether the dataset's rows could not be made; its status says why.
func (d Dataset) Unfilled() bool { return d.From != nil && d.State == DatasetUploading && !d.Filling() }

type DatasetFilled struct {
	Files Files `json:"files"`
	DatasetFacts
}

func (e DatasetFilled) Evolve(d *Dataset) {
	d.State, d.Status, d.Files = DatasetReady, StatusOf(nil), e.Files
	d.tell(e.DatasetFacts)
}

type DatasetUnfilled struct {
	Status Status `json:"status"`
}

func (e DatasetUnfilled) Evolve(d *Dataset) { d.Status = e.Status }

// FillDataset records that the rows of a derived dataset are made.
type FillDataset struct {
	Files Files
	DatasetFacts
}

func (c FillDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	switch {
	case d.From != nil && d.State == DatasetReady && d.Files.Folder == c.Files.Folder:
		return nil, nil
	case d.Unfilled():
		return nil, precondition("DATASET_UNFILLED", "it is already recorded that the rows could not be made: %s", d.Status.Message)
	}
	if err := d.mustFill(); err != nil {
		return nil, err
	}
	return DatasetFilled(c), nil
}

// LeaveUnfilled records why the rows of a derived dataset cannot be made.
type LeaveUnfilled struct{ Status Status }

func (c LeaveUnfilled) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if d.Unfilled() {
		return nil, nil
	}
	if err := d.mustFill(); err != nil {
		return nil, err
	}
	return DatasetUnfilled(c), nil
}

func (d Dataset) mustFill() error {
	switch {
	case !d.Exists():
		return gone("dataset")
	case d.From == nil:
		return precondition("NOT_DERIVED", "the dataset's rows are uploaded, not made from another's")
	case d.State == DatasetReady:
		return precondition("DATASET_READY", "the dataset is READY already")
	}
	return nil
}

// check names what is wrong with a derivation, in the fields of a create's body.
func (f *Derivation) check(v *Violations, s DatasetSpec) {
	if f == nil {
		v.Require(s.Splitted == nil || s.Splitted.Fraction == 0, "splitted.fraction", "is for a split that is made here: name the dataset to be split in sourceDatasetId beside it")
		return
	}
	if f.Split != nil {
		v.Require(f.Split.Held > 0 && f.Split.Held < f.Split.Of, "splitted.fraction", "leaves no row on one side: split a dataset of at least 2 rows")
	}
}

// checkOrigin names what is wrong with what a dataset is said to come from.
func (s DatasetSpec) checkOrigin(v *Violations) {
	origins := 0
	for _, given := range []bool{s.UserUploaded != nil, s.EvaluationResult != nil, s.Transformed != nil, s.Splitted != nil, s.EvalProtocol != nil} {
		if given {
			origins++
		}
	}
	v.Require(origins <= 1, "userUploaded", "only one of userUploaded, evaluationResult, transformed, splitted and evalProtocol may be given")
	bounded := func(field, text string, most int) {
		v.Require(len(text) <= most, field, "must have at most %d bytes", most)
	}
	bounded("sourceJobName", s.SourceJobName, maxReference)
	if e := s.EvaluationResult; e != nil {
		bounded("evaluationResult.evaluationJobId", e.EvaluationJobID, maxReference)
	}
	if t := s.Transformed; t != nil {
		bounded("transformed.sourceDatasetId", t.SourceDatasetID, maxReference)
		bounded("transformed.filter", t.Filter, maxRowFilter)
		oneOf(v, "transformed.originalFormat", t.OriginalFormat, "FORMAT_UNSPECIFIED", FormatChat, FormatCompletion, FormatRL)
	}
	if p := s.Splitted; p != nil {
		bounded("splitted.sourceDatasetId", p.SourceDatasetID, maxReference)
		v.Require(p.Fraction >= 0 && p.Fraction < 1, "splitted.fraction", "must be above 0 and below 1: the share of the rows that is held out")
		v.Require(p.Seed >= 0 && p.Seed <= MaxSeed, "splitted.seed", "must be from 0 to %d", MaxSeed)
	}
}

const (
	maxReference = 300     // bytes of a resource's name
	maxRowFilter = 4 << 10 // bytes
)

// lineage is what may not change of a dataset that the platform makes.
func (s DatasetSpec) lineage() DatasetSpec {
	s.DisplayName, s.ExternalURL = "", ""
	return s
}
