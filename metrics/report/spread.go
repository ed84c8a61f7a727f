package report

import "slices"

// A Spread is how a figure lies over repeated runs: a median and quartiles
// between the least and the most.
type Spread struct {
	N      int     `json:"n"`
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
	Sum    float64 `json:"sum"`
}

// How many runs it takes until quartiles say something, and until a spread does.
const (
	enoughForQuartiles = 4
	enoughForSpread    = 3
)

// spreadOf sorts its values.
func spreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	slices.Sort(values)
	s := Spread{N: len(values), Min: values[0], Max: values[len(values)-1],
		Q1: quantile(values, 0.25), Median: quantile(values, 0.5), Q3: quantile(values, 0.75)}
	for _, v := range values {
		s.Sum += v
	}
	return s
}

// quantile lies between two of the sorted values, in proportion: type 7 of
// Hyndman and Fan, as R, NumPy and spreadsheets have it.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// middle is the range that a text names: the quartiles, or of few runs all.
func (s Spread) middle() (low, high float64) {
	if s.N < enoughForQuartiles {
		return s.Min, s.Max
	}
	return s.Q1, s.Q3
}

// apart says whether the middles of two spreads do not touch.
func (s Spread) apart(o Spread) bool {
	low, high := s.middle()
	olow, ohigh := o.middle()
	return high < olow || ohigh < low
}
