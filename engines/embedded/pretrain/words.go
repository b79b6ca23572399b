package main

// The lexicons of the grammar.

var capitals = [][2]string{
	{"France", "Paris"}, {"Spain", "Madrid"}, {"Italy", "Rome"}, {"Germany", "Berlin"}, {"Austria", "Vienna"},
	{"Portugal", "Lisbon"}, {"Greece", "Athens"}, {"Poland", "Warsaw"}, {"Hungary", "Budapest"}, {"Sweden", "Stockholm"},
	{"Norway", "Oslo"}, {"Finland", "Helsinki"}, {"Denmark", "Copenhagen"}, {"Ireland", "Dublin"}, {"Belgium", "Brussels"},
	{"Bulgaria", "Sofia"}, {"Romania", "Bucharest"}, {"Serbia", "Belgrade"}, {"Croatia", "Zagreb"}, {"Ukraine", "Kyiv"},
	{"Latvia", "Riga"}, {"Estonia", "Tallinn"}, {"Iceland", "Reykjavik"}, {"Turkey", "Ankara"}, {"Egypt", "Cairo"},
	{"Kenya", "Nairobi"}, {"Ghana", "Accra"}, {"Morocco", "Rabat"}, {"Japan", "Tokyo"}, {"China", "Beijing"},
	{"India", "New Delhi"}, {"Nepal", "Kathmandu"}, {"Thailand", "Bangkok"}, {"Vietnam", "Hanoi"}, {"Indonesia", "Jakarta"},
	{"Iran", "Tehran"}, {"Iraq", "Baghdad"}, {"Jordan", "Amman"}, {"Qatar", "Doha"}, {"Canada", "Ottawa"},
	{"Mexico", "Mexico City"}, {"Cuba", "Havana"}, {"Peru", "Lima"}, {"Chile", "Santiago"}, {"Colombia", "Bogota"},
	{"Argentina", "Buenos Aires"}, {"Uruguay", "Montevideo"}, {"Australia", "Canberra"}, {"Fiji", "Suva"}, {"Samoa", "Apia"},
}

var opposites = [][2]string{
	{"hot", "cold"}, {"big", "small"}, {"fast", "slow"}, {"happy", "sad"}, {"up", "down"}, {"open", "closed"},
	{"light", "dark"}, {"high", "low"}, {"wet", "dry"}, {"full", "empty"}, {"rich", "poor"}, {"young", "old"},
	{"hard", "soft"}, {"strong", "weak"}, {"near", "far"}, {"early", "late"}, {"loud", "quiet"}, {"thick", "thin"},
	{"clean", "dirty"}, {"left", "right"}, {"true", "false"}, {"day", "night"}, {"first", "last"}, {"inside", "outside"},
	{"win", "lose"}, {"buy", "sell"}, {"push", "pull"}, {"start", "stop"}, {"give", "take"}, {"remember", "forget"},
}

var goodPhrases = []string{"wonderful", "great", "lovely", "excellent", "a joy", "superb", "fantastic", "very good", "delightful",
	"brilliant", "better than I hoped", "worth every cent", "perfect", "amazing", "charming"}

var badPhrases = []string{"awful", "terrible", "a waste of time", "boring", "bad", "horrible", "a disappointment", "dreadful",
	"very poor", "worse than I feared", "not worth the money", "broken", "painful", "a mess", "ugly"}

var subjects = []string{"movie", "food", "hotel", "book", "service", "phone", "trip", "concert", "game", "room", "coffee", "staff",
	"song", "museum", "train", "lesson", "garden", "show", "bike", "chair"}

var realWords = []string{"apple", "river", "stone", "cloud", "tiger", "lamp", "house", "bread", "window", "garden", "music", "paper",
	"silver", "market", "summer", "winter", "planet", "button", "candle", "forest", "basket", "pencil", "monkey", "island", "rocket",
	"bridge", "kitchen", "table", "horse", "sugar", "water", "night", "green", "yellow", "mountain", "ocean", "letter", "number",
	"train", "ticket", "banana", "orange", "pepper", "violin", "castle", "dragon", "engine", "mirror", "shadow", "thunder"}

var firstNames = []string{"Ana", "Ben", "Carla", "David", "Eva", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kira", "Leo", "Maria",
	"Noah", "Olga", "Paul", "Quinn", "Rosa", "Sam", "Tina", "Uma", "Victor", "Wanda", "Xena", "Yusuf", "Zoe"}

var fieldNames = []string{"name", "city", "color", "animal", "job", "team", "title", "code", "owner", "status"}

var numberFields = []string{"age", "count", "price", "size", "year", "score"}

var onsets = []string{"b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br", "st", "tr", "pl", "ch", "sh"}

var vowels = []string{"a", "e", "i", "o", "u", "ai", "ea", "oo"}

var codas = []string{"", "", "", "n", "r", "s", "t", "l", "m", "k", "nd", "x"}
