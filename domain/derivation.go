package domain

import (
	"math"
	"time"
)

// A Derivation describes how the platform derives a dataset from another dataset: from the rows
// that match a filter, from one side of a split, or from all rows.
type Derivation struct {
	Source Name `json:"source"`
	// blob prefix of the source's rows; it differs for a dataset that is created later under the
	// source's name
	Prefix string `json:"folder"`
	Filter string `json:"filter,omitempty"` // AIP-160 filter of rows; "" selects every row
	Split  *Split `json:"split,omitempty"`  // part of the rows to select; nil selects all rows
}

// A Split divides rows into two parts. The same seed always gives the same parts.
type Split struct {
	Held Count `json:"held"` // number of rows that are held out
	Of   Count `json:"of"`   // number of rows of the source dataset
	Seed int   `json:"seed"`
	Rest bool  `json:"rest,omitempty"` // select the rows that are not held out
}

// MaxSeed is the maximum seed of a split, which every JSON parser can represent.
const MaxSeed = math.MaxInt32

// An automatic carve-out holds out one row in CarveOneIn for evaluation, at least one and at most
// MaxCarved. MaxCarved is 1,000 because the standard error of the mean loss of 1,000 rows is only a
// thirtieth of the standard deviation of one row's loss.
const (
	CarveOneIn = 10
	MaxCarved  = 1000
)

// CarveOut returns how many of the rows of a dataset an automatic carve-out holds out.
func CarveOut(rows Count) Count {
	return min(max((rows+CarveOneIn/2)/CarveOneIn, 1), MaxCarved)
}

// CarvedFraction returns the fraction of the rows that an automatic carve-out holds out: the
// default of a split.
func CarvedFraction(rows Count) float64 { return float64(CarveOut(rows)) / float64(max(rows, 1)) }

// SplitOf returns the split that holds out a fraction of the rows, with at least one row in each
// part. seed selects the rows that are held out. With rest, the split selects the other rows.
func SplitOf(rows Count, fraction float64, seed int, rest bool) *Split {
	held := Count(math.Round(fraction * float64(rows)))
	return &Split{Held: min(max(held, 1), rows-1), Of: rows, Seed: seed, Rest: rest}
}

// Origin returns the split as the API shows it in the field splitted of the derived dataset. A
// dataset that is created with the same fraction and seed gets the same rows.
func (s Split) Origin(source Name) *DatasetSplitted {
	return &DatasetSplitted{SourceDatasetID: source.ID(), Fraction: float64(s.Held) / float64(s.Of), Seed: s.Seed,
		Rest: s.Rest}
}

// Filling reports whether the platform is deriving the dataset's rows.
func (d Dataset) Filling() bool {
	return d.From != nil && d.State == DatasetUploading && d.Status.Code == OK.String()
}

// FillFailed reports whether deriving the dataset's rows failed; the status has the reason.
func (d Dataset) FillFailed() bool {
	return d.From != nil && d.State == DatasetUploading && !d.Filling()
}

type DatasetFilled struct {
	Files Files `json:"files"`
	DatasetStats
}

func (e DatasetFilled) Evolve(d *Dataset) {
	d.State, d.Status, d.Files = DatasetReady, StatusOf(nil), e.Files
	d.setStats(e.DatasetStats)
}

type DatasetUnfilled struct {
	Status Status `json:"status"`
}

func (e DatasetUnfilled) Evolve(d *Dataset) { d.Status = e.Status }

// FillDataset records that the rows of a derived dataset are stored, and their statistics.
type FillDataset struct {
	Files Files
	DatasetStats
}

func (c FillDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	switch {
	case d.From != nil && d.State == DatasetReady && d.Files.Prefix == c.Files.Prefix:
		return nil, nil
	case d.FillFailed():
		return nil, precondition("DATASET_UNFILLED", "a failure to derive the rows is already recorded: %s",
			d.Status.Message)
	}
	if err := d.mustFill(); err != nil {
		return nil, err
	}
	return DatasetFilled(c), nil
}

// FailFill records that the rows of a derived dataset cannot be derived, and why.
type FailFill struct{ Status Status }

func (c FailFill) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if d.FillFailed() {
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
		return notFound("dataset")
	case d.From == nil:
		return precondition("NOT_DERIVED", "the dataset's rows are uploaded, not derived from another dataset")
	case d.State == DatasetReady:
		return precondition("DATASET_READY", "the dataset is already READY")
	}
	return nil
}

// check adds the violations of the derivation to v, under the field names of the request that
// creates the derived dataset. s is the spec of that dataset.
func (f *Derivation) check(v *Violations, s DatasetSpec) {
	if f == nil {
		v.Require(s.Splitted == nil || s.Splitted.Fraction == 0, "splitted.fraction",
			"requires sourceDatasetId, the dataset to split")
		return
	}
	if f.Split != nil {
		v.Require(f.Split.Held > 0 && f.Split.Held < f.Split.Of, "splitted.fraction",
			"leaves one part without rows: split a dataset of at least 2 rows")
	}
}

// checkOrigin adds the violations of the fields that describe where a dataset comes from.
func (s DatasetSpec) checkOrigin(v *Violations) {
	origins := 0
	for _, given := range []bool{s.UserUploaded != nil, s.EvaluationResult != nil, s.Transformed != nil, s.Splitted != nil,
		s.EvalProtocol != nil} {
		if given {
			origins++
		}
	}
	v.Require(origins <= 1, "userUploaded",
		"only one of userUploaded, evaluationResult, transformed, splitted and evalProtocol may be given")
	bounded := func(field, text string, limit int) {
		v.Require(len(text) <= limit, field, "must have at most %d bytes", limit)
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
		v.Require(p.Fraction >= 0 && p.Fraction < 1, "splitted.fraction",
			"must be above 0 and below 1, because it is the fraction of the rows that are held out")
		v.Require(p.Seed >= 0 && p.Seed <= MaxSeed, "splitted.seed", "must be from 0 to %d", MaxSeed)
	}
}

const (
	maxReference = 300     // maximum length of a resource name in bytes
	maxRowFilter = 4 << 10 // maximum length of a filter of rows in bytes
)

// immutableOrigin returns the fields of s that cannot change in a derived dataset; the other fields
// are zero.
func (s DatasetSpec) immutableOrigin() DatasetSpec {
	s.DisplayName, s.ExternalURL, s.CredentialsSecret = "", "", ""
	return s
}
