import pickle,json,sys,math,statistics,collections
A=pickle.load(open('/tmp/play/est_old.pkl','rb')); B=pickle.load(open('/tmp/play/est_new.pkl','rb'))
old={(r[0],r[1],r[2],r[4],r[5],r[6],r[7],r[8],r[9],r[10],r[12]):r for r in A}
def cls(j):
    if j.get('placement') and j['placement']!='fused': return j['placement']
    k=[j.get('kernel','gl?')]
    for f in ('backend','pull','stored','one_step','kernel_sums','together','placement'):
        if f in j and j[f]: k.append(f"{f}={j[f]}" if not isinstance(j[f],bool) else f)
    if j.get('split',1)>1: k.append(f"split{'c' if j.get('split_axis') else 'r'}")
    c=j.get('chunking',{})
    if isinstance(c,dict) and c.get('rows',1)>1: k.append('rows')
    if isinstance(c,dict) and c.get('slices',1)!=1: k.append('slices')
    return ' '.join(map(str,k))
by=collections.defaultdict(list)
for r in B:
    o=old.get((r[0],r[1],r[2],r[4],r[5],r[6],r[7],r[8],r[9],r[10],r[12]))
    if not o: continue
    if o[11].get('objection') or r[11].get('objection'): continue
    key=(r[0],r[2]+'x'+r[1],cls(json.loads(r[12])))
    by[key].append((r[3]=='compared', math.log(o[11]['us']/r[10]), math.log(r[11]['us']/r[10])))
flt=sys.argv[1:] 
for k,v in sorted(by.items()):
    if flt and not all(f in ' '.join(k) for f in flt): continue
    def st(w):
        if not w: return ' '*33
        a=[x for _,x,_ in w]; b=[y for *_,y in w]
        return f"n{len(w):4} old {statistics.median(a):+.3f}/{statistics.mean(map(abs,a)):.3f} new {statistics.median(b):+.3f}/{statistics.mean(map(abs,b)):.3f}"
    print(f"{st([x for x in v if not x[0]]):42} | {st([x for x in v if x[0]]):42} {' '.join(k)}")
