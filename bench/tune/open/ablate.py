import sys,json,os,math,statistics
os.chdir('/work/wt/play'); sys.path.insert(0,'bench/tune'); sys.path.insert(0,'python')
import estimate as E
from syncopate import _syncopate as S
L=E.tabled()+E.searched()+E.compared()
names=sorted({l.machine for l in L}); base={n:json.load(open(f'share/machines/{n}.json')) for n in names}
N={'idle_gain':0,'beside_copies':1,'beside_sums':1,'gluon_narrow':1,'engine_us':0,'engine_walk_us':0,'engine_ldst':1,'engine_sum_ldst':1,'sent_us':'sum_us','copies_us':0,'gluon_load_gbps':'library_load_gbps','long_plain':1,'gluon_sum_gbps':1,'gluon_filled':1000,'gluon_fused_us':'fused_us','library_call_us':'call_us','gluon_split_us':0,'gluon_split_gbps':1e6,'kernel_sums_us':'fused_us','library_tile_us':'tile_us'}
def run(tag,fs,defaults=True):
    ms={}
    for n in names:
        m=json.loads(json.dumps(base[n]))
        for f in fs:
            v=N[f]; m['figures'][f]['value']=m['figures'][v]['value'] if isinstance(v,str) else v
        ms[n]=f'/tmp/play/abl/c{abs(hash(tag))}-{n}.json'; json.dump(m,open(ms[n],'w'))
    for l in L: l.again(ms[l.machine])
    reg=[l.regret for l in L if len(l.times)>=3]
    err=statistics.mean(abs(math.log(g/u)) for l in L for u,g in l.times.values())
    d=[]
    if defaults:
        for r in (2,4,8):
            b=json.load(open(f'/tmp/play/before{r}.json')); c=0
            for s in list(b)[::(3 if r==2 else 2 if r==4 else 1)]:
                made=S.tune.choose(f'{s},ranks={r},sms=132',ms[f'h200x{r}'])
                c+=json.loads(made[0].to_json())!=b[s]
            d.append(c)
    print(f"{tag:40} regret {statistics.mean(reg):.4f} worst {max(reg):.2f} excess {sum(l.regret-1 for l in L):.2f} err {err:.4f} changed from main (sample) {d}",flush=True)
if __name__=='__main__':
    run('none',[])
    A=['beside_copies','beside_sums','gluon_narrow','engine_us','engine_walk_us','engine_ldst','engine_sum_ldst']
    run('A',A); run('A+idle',A+['idle_gain']); run('A+idle+sent',A+['idle_gain','sent_us']); run('A+sent',A+['sent_us']); run('A+sent+copies',A+['sent_us','copies_us']);run('A+sent+gload',A+['sent_us','gluon_load_gbps']);run('A+sent+filled',A+['sent_us','gluon_filled']); run('A+sent+glsum',A+['sent_us','gluon_sum_gbps'])
    run('A+sent+long',A+['sent_us','long_plain']); run('A+sent+lcall',A+['sent_us','library_call_us']);run('A+sent+split',A+['sent_us','gluon_split_us']);
