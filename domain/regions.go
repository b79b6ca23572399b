package domain

// Regions are where work may be placed.
var Regions = []string{"REGION_UNSPECIFIED", "US_IOWA_1", "US_VIRGINIA_1", "US_VIRGINIA_2", "US_ILLINOIS_1", "AP_TOKYO_1",
	"EU_LONDON_1", "US_ARIZONA_1", "US_TEXAS_1", "US_ILLINOIS_2", "EU_FRANKFURT_1", "US_TEXAS_2", "EU_PARIS_1", "EU_HELSINKI_1",
	"US_NEVADA_1", "EU_ICELAND_1", "EU_ICELAND_2", "US_WASHINGTON_1", "US_WASHINGTON_2", "EU_ICELAND_DEV_1", "US_WASHINGTON_3",
	"US_ARIZONA_2", "AP_TOKYO_2", "US_CALIFORNIA_1", "US_MISSOURI_1", "US_UTAH_1", "US_TEXAS_3", "US_ARIZONA_3", "US_GEORGIA_1",
	"US_GEORGIA_2", "US_WASHINGTON_4", "US_GEORGIA_3", "NA_BRITISHCOLUMBIA_1", "US_GEORGIA_4", "EU_ICELAND_3", "US_OHIO_1"}

// AcceleratorTypes are the devices that a deployment may ask for.
var AcceleratorTypes = []string{"ACCELERATOR_TYPE_UNSPECIFIED", "VENDOR_A_A100_80GB", "VENDOR_A_H100_80GB", "VENDOR_B_MI300X_192GB",
	"VENDOR_A_A10G_24GB", "VENDOR_A_A100_40GB", "VENDOR_A_L4_24GB", "VENDOR_A_H200_141GB", "VENDOR_A_B200_180GB",
	"VENDOR_B_MI325X_256GB", "VENDOR_B_MI350X_288GB"}

// Precisions are the number formats that a deployment may ask for.
var Precisions = []string{"PRECISION_UNSPECIFIED", "FP16", "FP8", "FP8_MM", "FP8_AR", "FP8_MM_KV_ATTN", "FP8_KV", "FP8_MM_V2",
	"FP8_V2", "FP8_MM_KV_ATTN_V2", "NF4", "FP4", "BF16", "FP4_BLOCKSCALED_MM", "FP4_MX_MOE"}

// MultiRegions are the groups of regions that a placement may name.
var MultiRegions = []string{"MULTI_REGION_UNSPECIFIED", "GLOBAL", "US", "EUROPE", "APAC"}
