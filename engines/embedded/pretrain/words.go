package main

// Lexicons from which examples are generated.

var capitals = [][2]string{
	{"France", "Paris"}, {"Spain", "Madrid"}, {"Italy", "Rome"}, {"Germany", "Berlin"}, {"Austria", "Vienna"},
	{"Portugal", "Lisbon"}, {"Greece", "Athens"}, {"Poland", "Warsaw"}, {"Hungary", "Budapest"}, {"Sweden", "Stockholm"},
	{"Norway", "Oslo"}, {"Finland", "Helsinki"}, {"Denmark", "Copenhagen"}, {"Ireland", "Dublin"}, {"Belgium", "Brussels"},
	{"Bulgaria", "Sofia"}, {"Romania", "Bucharest"}, {"Serbia", "Belgrade"}, {"Croatia", "Zagreb"}, {"Ukraine", "Kyiv"},
	{"Latvia", "Riga"}, {"Estonia", "Tallinn"}, {"Iceland", "Reykjavik"}, {"Turkey", "Ankara"}, {"Egypt", "Cairo"},
	{"Kenya", "Nairobi"}, {"Ghana", "Accra"}, {"Morocco", "Rabat"}, {"Japan", "Tokyo"}, {"China", "Beijing"},
	{"India", "New Delhi"}, {"Nepal", "Kathmandu"}, {"Thailand", "Bangkok"}, {"Vietnam", "Hanoi"},
	{"Indonesia", "Jakarta"},
	{"Iran", "Tehran"}, {"Iraq", "Baghdad"}, {"Jordan", "Amman"}, {"Qatar", "Doha"}, {"Canada", "Ottawa"},
	{"Mexico", "Mexico City"}, {"Cuba", "Havana"}, {"Peru", "Lima"}, {"Chile", "Santiago"}, {"Colombia", "Bogota"},
	{"Argentina", "Buenos Aires"}, {"Uruguay", "Montevideo"}, {"Australia", "Canberra"}, {"Fiji", "Suva"},
	{"Samoa", "Apia"},
}

var goodPhrases = []string{
	"wonderful", "great", "lovely", "excellent", "a joy", "superb", "fantastic", "very good", "delightful",
	"brilliant", "better than I hoped", "worth every cent", "perfect", "amazing", "charming",
}

var badPhrases = []string{
	"awful", "terrible", "a waste of time", "boring", "bad", "horrible", "a disappointment", "dreadful",
	"very poor", "worse than I feared", "not worth the money", "broken", "painful", "a mess", "ugly",
}

var subjects = []string{
	"movie", "food", "hotel", "book", "service", "phone", "trip", "concert", "game", "room", "coffee", "staff",
	"song", "museum", "train", "lesson", "garden", "show", "bike", "chair",
}

var realWords = []string{
	"apple", "river", "stone", "cloud", "tiger", "lamp", "house", "bread", "window", "garden", "music", "paper",
	"silver", "market", "summer", "winter", "planet", "button", "candle", "forest", "basket", "pencil", "monkey", "island",
	"rocket",
	"bridge", "kitchen", "table", "horse", "sugar", "water", "night", "green", "yellow", "mountain", "ocean", "letter",
	"number",
	"train", "ticket", "banana", "orange", "pepper", "violin", "castle", "dragon", "engine", "mirror", "shadow", "thunder",
}

var firstNames = []string{
	"Ana", "Ben", "Carla", "David", "Eva", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kira", "Leo", "Maria",
	"Noah", "Olga", "Paul", "Quinn", "Rosa", "Sam", "Tina", "Uma", "Victor", "Wanda", "Xena", "Yusuf", "Zoe",
}

var fieldNames = []string{"name", "city", "color", "animal", "job", "team", "title", "code", "owner", "status"}

var numberFields = []string{"age", "count", "price", "size", "year", "score"}

var onsets = []string{
	"b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br", "st", "tr", "pl", "ch",
	"sh",
}

var vowels = []string{"a", "e", "i", "o", "u", "ai", "ea", "oo"}

var codas = []string{"", "", "", "n", "r", "s", "t", "l", "m", "k", "nd", "x"}

var colors = []string{
	"red", "green", "blue", "yellow", "white", "black", "pink", "orange", "grey", "brown", "violet", "teal",
}

var things = []string{
	"lamp", "candle", "chair", "button", "basket", "pencil", "mirror", "ticket", "violin", "engine", "hammer", "kettle",
	"jacket", "whistle", "umbrella", "yacht", "notebook", "rocket", "dish", "fan",
}

var months = []string{
	"January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
	"December",
}

// departments are invented labels, with the sentences that belong to them. In a sentence, %s stands
// for a thing.
var departments = []struct {
	name      string
	sentences []string
}{
	{
		"harbor", []string{
			"My %s has not arrived yet.", "Where is the parcel with my %s?", "The delivery of the %s is late.",
			"Track my %s please.",
			"The courier lost my %s.", "When will the %s be shipped?",
		},
	},
	{
		"mint", []string{
			"I was charged twice for the %s.", "Please refund the %s.", "The invoice for the %s is wrong.",
			"My card was declined for the %s.",
			"Why is the price of the %s higher now?", "I need a receipt for the %s.",
		},
	},
	{
		"forge", []string{
			"The %s does not work.", "My %s is broken.", "How do I repair the %s?", "The %s makes a strange noise.",
			"The %s stopped after an hour.",
			"A part of the %s is missing.",
		},
	},
	{
		"meadow", []string{
			"I love my new %s!", "Just wanted to say the %s is great.", "Thank you for the %s.", "The %s made my day.",
			"Best %s I ever had.",
			"Your team was kind about my %s.",
		},
	},
}
