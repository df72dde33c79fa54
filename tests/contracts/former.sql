BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'toy');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MAXIMIZE',1,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'trialplane:epoch','1');
INSERT INTO "study_user_attributes" VALUES(2,1,'trialplane:job','{}');
INSERT INTO "study_user_attributes" VALUES(3,1,'trialplane:submission','{"submitted": 5.0, "user": "ann"}');
INSERT INTO "study_user_attributes" VALUES(4,1,'trialplane:code','"AAEC"');
INSERT INTO "study_user_attributes" VALUES(5,1,'trialplane:status','{"run": "toy", "job": "toy", "state": "RUNNING", "trials": 16, "parallel": 0, "reason": "", "complete": 0, "pruned": 0, "failed": 0, "running": 0, "retried": 0, "failures": {}, "slots_ready": 0, "nodes": [], "objectives": [], "best": null, "rate": null, "eta": null, "created": 0.0, "started": 6.0, "ended": null, "updated": 0.0, "recorder": "", "unrecorded": false, "warnings": [], "kind": "hpo", "slots_per_trial": 1, "progress": {}, "workers": [], "worked": 12.5}');
INSERT INTO "study_user_attributes" VALUES(6,1,'trialplane:wish','{"state": "RUNNING", "parallel": 3, "again": null}');
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_intermediate_values" VALUES(1,1,0,9.02004893488378312049e-01,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(2,1,1,0.5,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(3,2,0,1.71277581782354526573e-01,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(4,2,1,NULL,'INF_POS');
INSERT INTO "trial_intermediate_values" VALUES(5,3,0,5.3065081104114630861e-01,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(6,3,1,0.5,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(7,4,0,9.6964502791411688598e-01,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(8,4,1,0.5,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(9,5,0,7.85076125867360086196e-01,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(10,5,1,0.5,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(11,6,0,2.16842616213124061985e-01,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(12,6,1,0.5,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(13,8,0,9.62397064795606160814e-01,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(14,8,1,0.5,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(15,9,0,5.45645263843668182346e-01,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(16,9,1,0.5,'FINITE');
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,1,'x',9.02004893488378312049e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(2,1,'layers',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(3,1,'kind',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null, 3]}}');
INSERT INTO "trial_params" VALUES(4,2,'x',1.71277581782354526573e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(5,2,'layers',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(6,2,'kind',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null, 3]}}');
INSERT INTO "trial_params" VALUES(7,3,'x',5.3065081104114630861e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(8,3,'layers',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(9,3,'kind',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null, 3]}}');
INSERT INTO "trial_params" VALUES(10,4,'x',9.6964502791411688598e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(11,4,'layers',4.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(12,4,'kind',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null, 3]}}');
INSERT INTO "trial_params" VALUES(13,5,'x',7.85076125867360086196e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(14,5,'layers',4.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(15,5,'kind',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null, 3]}}');
INSERT INTO "trial_params" VALUES(16,6,'x',2.16842616213124061985e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(17,6,'layers',4.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(18,6,'kind',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null, 3]}}');
INSERT INTO "trial_params" VALUES(19,7,'x',2.16842616213124061985e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(20,7,'layers',4.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(21,7,'kind',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null, 3]}}');
INSERT INTO "trial_params" VALUES(22,8,'x',9.62397064795606160814e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(23,8,'layers',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(24,8,'kind',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null, 3]}}');
INSERT INTO "trial_params" VALUES(25,9,'x',5.45645263843668182346e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(26,9,'layers',2.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(27,9,'kind',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null, 3]}}');
INSERT INTO "trial_params" VALUES(28,10,'x',9.37994908075099220745e-01,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}');
INSERT INTO "trial_params" VALUES(29,10,'layers',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 1, "high": 4}}');
INSERT INTO "trial_params" VALUES(30,10,'kind',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null, 3]}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_system_attributes" VALUES(1,1,'constraints:size','0.0');
INSERT INTO "trial_system_attributes" VALUES(2,2,'constraints:size','-2.0');
INSERT INTO "trial_system_attributes" VALUES(3,4,'tpe:relative_params:0','"{\"kind\": \"a\", \"layers\": 4, \"x\": 0.9696450279141169}"');
INSERT INTO "trial_system_attributes" VALUES(4,5,'tpe:relative_params:0','"{\"kind\": \"a\", \"layers\": 4, \"x\": 0.7850761258673601}"');
INSERT INTO "trial_system_attributes" VALUES(5,6,'tpe:relative_params:0','"{\"kind\": \"a\", \"layers\": 4, \"x\": 0.21684261621312406}"');
INSERT INTO "trial_system_attributes" VALUES(6,7,'tpe:relative_params:0','"{\"kind\": \"a\", \"layers\": 4, \"x\": 0.21684261621312406}"');
INSERT INTO "trial_system_attributes" VALUES(7,7,'constraints:size','1.0');
INSERT INTO "trial_system_attributes" VALUES(8,8,'tpe:relative_params:0','"{\"kind\": \"b\", \"layers\": 3, \"x\": 0.9623970647956062}"');
INSERT INTO "trial_system_attributes" VALUES(9,8,'constraints:size','0.0');
INSERT INTO "trial_system_attributes" VALUES(10,9,'tpe:relative_params:0','"{\"kind\": \"b\", \"layers\": 2, \"x\": 0.5456452638436682}"');
INSERT INTO "trial_system_attributes" VALUES(11,9,'constraints:size','-1.0');
INSERT INTO "trial_system_attributes" VALUES(12,10,'tpe:relative_params:0','"{\"kind\": 3, \"layers\": 1, \"x\": 0.9379949080750992}"');
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'trialplane:request','{"run": "toy", "trial": 0, "attempt": 1, "number": 0, "params": {"x": 0.9020048934883783, "layers": 3, "kind": "a"}, "seed": 3613499672, "metrics": ["score", "size"], "timeout": null, "prunable": true, "env": {}, "retry_of": null, "node": 0, "rendezvous": "", "resume": "", "worker": null, "units": 0}');
INSERT INTO "trial_user_attributes" VALUES(2,1,'trialplane:outcome','{"number": 0, "state": "COMPLETE", "failure": null, "metrics": {"score": 0.9020048934883783, "size": 3.0}, "returned": {}, "message": "", "place": "", "traceback": "", "exit_code": null, "started": 1795356348.8906617, "ended": 0.0, "node": "", "pid": 0, "start_method": "", "log": "", "peak_memory": 0, "arrays": 0, "retried": false, "step": 0, "mlflow": ""}');
INSERT INTO "trial_user_attributes" VALUES(3,2,'trialplane:request','{"run": "toy", "trial": 1, "attempt": 1, "number": 1, "params": {"x": 0.17127758178235453, "layers": 1, "kind": null}, "seed": 3889102394, "metrics": ["score", "size"], "timeout": null, "prunable": true, "env": {}, "retry_of": null, "node": 0, "rendezvous": "", "resume": "", "worker": null, "units": 0}');
INSERT INTO "trial_user_attributes" VALUES(4,2,'trialplane:outcome','{"number": 1, "state": "COMPLETE", "failure": null, "metrics": {"score": 0.17127758178235453, "size": 1.0}, "returned": {}, "message": "", "place": "", "traceback": "", "exit_code": null, "started": 1795356348.8979652, "ended": 0.0, "node": "", "pid": 0, "start_method": "", "log": "", "peak_memory": 0, "arrays": 0, "retried": false, "step": 0, "mlflow": ""}');
INSERT INTO "trial_user_attributes" VALUES(5,3,'trialplane:request','{"run": "toy", "trial": 2, "attempt": 1, "number": 2, "params": {"x": 0.5306508110411463, "layers": 2, "kind": null}, "seed": 1973669984, "metrics": ["score", "size"], "timeout": null, "prunable": true, "env": {}, "retry_of": null, "node": 0, "rendezvous": "", "resume": "", "worker": null, "units": 0}');
INSERT INTO "trial_user_attributes" VALUES(6,3,'trialplane:outcome','{"number": 2, "state": "PRUNED", "failure": null, "metrics": {"score": 0.5}, "returned": {}, "message": "", "place": "", "traceback": "", "exit_code": null, "started": 1795356348.9009252, "ended": 0.0, "node": "", "pid": 0, "start_method": "", "log": "", "peak_memory": 0, "arrays": 0, "retried": false, "step": 0, "mlflow": ""}');
INSERT INTO "trial_user_attributes" VALUES(7,4,'trialplane:request','{"run": "toy", "trial": 3, "attempt": 1, "number": 3, "params": {"x": 0.9696450279141169, "layers": 4, "kind": "a"}, "seed": 2670740220, "metrics": ["score", "size"], "timeout": null, "prunable": true, "env": {}, "retry_of": null, "node": 0, "rendezvous": "", "resume": "", "worker": null, "units": 0}');
INSERT INTO "trial_user_attributes" VALUES(8,4,'trialplane:outcome','{"number": 3, "state": "FAILED", "failure": "error", "metrics": {}, "returned": {}, "message": "a mistake", "place": "", "traceback": "", "exit_code": null, "started": 1795356348.9052749, "ended": 0.0, "node": "", "pid": 0, "start_method": "", "log": "", "peak_memory": 0, "arrays": 0, "retried": false, "step": 0, "mlflow": ""}');
INSERT INTO "trial_user_attributes" VALUES(9,5,'trialplane:request','{"run": "toy", "trial": 4, "attempt": 1, "number": 4, "params": {"x": 0.7850761258673601, "layers": 4, "kind": "a"}, "seed": 118526703, "metrics": ["score", "size"], "timeout": null, "prunable": true, "env": {}, "retry_of": null, "node": 0, "rendezvous": "", "resume": "", "worker": null, "units": 0}');
INSERT INTO "trial_user_attributes" VALUES(10,5,'trialplane:outcome','{"number": 4, "state": "FAILED", "failure": "oom", "metrics": {}, "returned": {}, "message": "", "place": "", "traceback": "", "exit_code": null, "started": 1795356348.9093235, "ended": 0.0, "node": "", "pid": 0, "start_method": "", "log": "", "peak_memory": 0, "arrays": 0, "retried": false, "step": 0, "mlflow": ""}');
INSERT INTO "trial_user_attributes" VALUES(11,6,'trialplane:request','{"run": "toy", "trial": 5, "attempt": 1, "number": 5, "params": {"x": 0.21684261621312406, "layers": 4, "kind": "a"}, "seed": 379330615, "metrics": ["score", "size"], "timeout": null, "prunable": true, "env": {}, "retry_of": null, "node": 0, "rendezvous": "", "resume": "", "worker": null, "units": 0}');
INSERT INTO "trial_user_attributes" VALUES(12,6,'trialplane:outcome','{"number": 5, "state": "FAILED", "failure": "lost", "metrics": {}, "returned": {}, "message": "", "place": "", "traceback": "", "exit_code": null, "started": 1795356348.9131775, "ended": 0.0, "node": "", "pid": 0, "start_method": "", "log": "", "peak_memory": 0, "arrays": 0, "retried": true, "step": 0, "mlflow": ""}');
INSERT INTO "trial_user_attributes" VALUES(13,7,'trialplane:request','{"run": "toy", "trial": 5, "attempt": 2, "number": 6, "params": {"x": 0.21684261621312406, "layers": 4, "kind": "a"}, "seed": 379330615, "metrics": ["score", "size"], "timeout": null, "prunable": true, "env": {}, "retry_of": 5, "node": 0, "rendezvous": "", "resume": "", "worker": null, "units": 0}');
INSERT INTO "trial_user_attributes" VALUES(14,7,'trialplane:outcome','{"number": 6, "state": "COMPLETE", "failure": null, "metrics": {"score": 0.21684261621312406, "size": 4.0}, "returned": {}, "message": "", "place": "", "traceback": "", "exit_code": null, "started": 1795356348.9152374, "ended": 0.0, "node": "", "pid": 0, "start_method": "", "log": "", "peak_memory": 0, "arrays": 0, "retried": false, "step": 0, "mlflow": ""}');
INSERT INTO "trial_user_attributes" VALUES(15,8,'trialplane:request','{"run": "toy", "trial": 6, "attempt": 1, "number": 7, "params": {"x": 0.9623970647956062, "layers": 3, "kind": "b"}, "seed": 264209944, "metrics": ["score", "size"], "timeout": null, "prunable": true, "env": {}, "retry_of": null, "node": 0, "rendezvous": "", "resume": "", "worker": null, "units": 0}');
INSERT INTO "trial_user_attributes" VALUES(16,8,'trialplane:outcome','{"number": 7, "state": "COMPLETE", "failure": null, "metrics": {"score": 0.9623970647956062, "size": 3.0}, "returned": {}, "message": "", "place": "", "traceback": "", "exit_code": null, "started": 1795356348.9190395, "ended": 0.0, "node": "", "pid": 0, "start_method": "", "log": "", "peak_memory": 0, "arrays": 0, "retried": false, "step": 0, "mlflow": ""}');
INSERT INTO "trial_user_attributes" VALUES(17,9,'trialplane:request','{"run": "toy", "trial": 7, "attempt": 1, "number": 8, "params": {"x": 0.5456452638436682, "layers": 2, "kind": "b"}, "seed": 3376649957, "metrics": ["score", "size"], "timeout": null, "prunable": true, "env": {}, "retry_of": null, "node": 0, "rendezvous": "", "resume": "", "worker": null, "units": 0}');
INSERT INTO "trial_user_attributes" VALUES(18,9,'trialplane:outcome','{"number": 8, "state": "COMPLETE", "failure": null, "metrics": {"score": 0.5456452638436682, "size": 2.0}, "returned": {}, "message": "", "place": "", "traceback": "", "exit_code": null, "started": 1795356348.9230714, "ended": 0.0, "node": "", "pid": 0, "start_method": "", "log": "", "peak_memory": 0, "arrays": 0, "retried": false, "step": 0, "mlflow": ""}');
INSERT INTO "trial_user_attributes" VALUES(19,10,'trialplane:request','{"run": "toy", "trial": 8, "attempt": 1, "number": 9, "params": {"x": 0.9379949080750992, "layers": 1, "kind": 3}, "seed": 2158808574, "metrics": ["score", "size"], "timeout": null, "prunable": true, "env": {}, "retry_of": null, "node": 0, "rendezvous": "", "resume": "", "worker": null, "units": 0}');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,9.02004893488378312049e-01,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,1.71277581782354526573e-01,'FINITE');
INSERT INTO "trial_values" VALUES(3,3,0,0.5,'FINITE');
INSERT INTO "trial_values" VALUES(4,7,0,2.16842616213124061985e-01,'FINITE');
INSERT INTO "trial_values" VALUES(5,8,0,9.62397064795606160814e-01,'FINITE');
INSERT INTO "trial_values" VALUES(6,9,0,5.45645263843668182346e-01,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-22 14:05:48.890042','2026-11-22 14:05:48.894666');
INSERT INTO "trials" VALUES(2,1,1,'COMPLETE','2026-11-22 14:05:48.897523','2026-11-22 14:05:48.899005');
INSERT INTO "trials" VALUES(3,2,1,'PRUNED','2026-11-22 14:05:48.900564','2026-11-22 14:05:48.901734');
INSERT INTO "trials" VALUES(4,3,1,'FAIL','2026-11-22 14:05:48.903059','2026-11-22 14:05:48.906172');
INSERT INTO "trials" VALUES(5,4,1,'FAIL','2026-11-22 14:05:48.907528','2026-11-22 14:05:48.910218');
INSERT INTO "trials" VALUES(6,5,1,'FAIL','2026-11-22 14:05:48.911526','2026-11-22 14:05:48.914096');
INSERT INTO "trials" VALUES(7,6,1,'COMPLETE','2026-11-22 14:05:48.915171','2026-11-22 14:05:48.915898');
INSERT INTO "trials" VALUES(8,7,1,'COMPLETE','2026-11-22 14:05:48.917362','2026-11-22 14:05:48.920001');
INSERT INTO "trials" VALUES(9,8,1,'COMPLETE','2026-11-22 14:05:48.921423','2026-11-22 14:05:48.923956');
INSERT INTO "trials" VALUES(10,9,1,'RUNNING','2026-11-22 14:05:48.925393',NULL);
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;
